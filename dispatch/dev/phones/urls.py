"""Map the routes of the phones page. Outside development each is a 404."""

from django.urls import path

from dispatch.dev.phones import views

app_name = "phones"
urlpatterns = [
    path("", views.page, name="page"),
    path("news/", views.news, name="news"),
    path("<slug:key>/<slug:action>/", views.act, name="act"),
]
