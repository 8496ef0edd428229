"""URLs of sign-in and account security: only the parts of django-allauth that are used."""

from allauth.account import views as account_views
from django.urls import include, path
from django.views.decorators.http import require_POST
from django.views.generic import RedirectView

from accounts.auth.views import PasskeySignInView, RemovePasskeyView, SessionsView
from accounts.sso import views as sso

urlpatterns = [
    # django-allauth uses these names.
    path("login/", RedirectView.as_view(pattern_name="admin:login", query_string=True), name="account_login"),
    path("logout/", require_POST(account_views.logout), name="account_logout"),
    path("inactive/", account_views.account_inactive, name="account_inactive"),
    path("reauthenticate/", account_views.reauthenticate, name="account_reauthenticate"),
    # These come before django-allauth's own views of the same names.
    path("second-factor/webauthn/login/", PasskeySignInView.as_view(), name="mfa_login_webauthn"),
    path("second-factor/webauthn/keys/<int:pk>/remove/", RemovePasskeyView.as_view(), name="mfa_remove_webauthn"),
    path("second-factor/", include("allauth.mfa.urls")),
    path("sso/", sso.StartView.as_view(), name="sso_start"),
    path("sso/<int:pk>/", sso.begin_sign_in, name="sso_begin"),
    path("sso/<int:pk>/callback/", sso.finish_sign_in, name="sso_callback"),
    path("sessions/", SessionsView.as_view(), name="usersessions_list"),
]
